"""What happens in a transaction, written once for every database: a module for each subject."""
