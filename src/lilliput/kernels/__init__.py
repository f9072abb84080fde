"""Loops as machine code, for a CPU: what no composition of torch's operations does as fast. Made by LLVM where it is
used."""
