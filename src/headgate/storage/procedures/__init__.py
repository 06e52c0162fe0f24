"""The steps of each transaction, written once for every database: a module for each subject."""
