"""The negotiation between ranks: pure code, without threads, sockets, files, clocks or environment variables."""
