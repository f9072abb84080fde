"""Files on disk: atomic files, checkpoints, the state format and run folders."""
