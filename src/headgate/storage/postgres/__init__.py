"""The store on PostgreSQL: any number of worker processes on any number of machines."""
