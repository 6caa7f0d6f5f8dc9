"""What hvdlite needs of CUDA, called through ctypes: the driver, streams, events, memory."""
