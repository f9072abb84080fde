"""Compiled CPU code, built by LLVM on the machine that runs it. README.md explains the design and how to debug it."""
