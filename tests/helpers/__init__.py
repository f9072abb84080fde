"""What several tests share: small runs, models, corpora and files, each module named for what it makes."""
