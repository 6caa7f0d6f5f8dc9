"""The modules that only Horovod has, such as ``horovod.common.util``; `hvdlite.compat` gives them these names."""
