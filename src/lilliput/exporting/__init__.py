"""Models that leave: exporters to Hugging Face folders and GGUF files, each verified by a program that reads the export."""
