"""What the broker answers: functions only, grouped by subject. `routes.py` says which request calls which."""
