"""What people see while ranks run: their lines, and how far each one is.

One thread of the parent shows all of it. Nothing in here is imported unless it was asked for.
"""
