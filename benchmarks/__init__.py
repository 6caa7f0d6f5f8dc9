"""What the project holds itself against: run from its folder, and in no wheel. `hvdlite.bench` is what users run."""
