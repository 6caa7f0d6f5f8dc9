"""The links over which ranks negotiate: Unix sockets within a host, ZeroMQ across hosts."""
