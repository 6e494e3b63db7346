"""What people and programs see of runs from outside: Flower's events and signals in Celery's style."""
