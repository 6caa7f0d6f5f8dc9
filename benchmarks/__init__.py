"""The benchmarks of the project itself: run from its folder, and in no wheel. `hvdlite.bench` is what users run."""
