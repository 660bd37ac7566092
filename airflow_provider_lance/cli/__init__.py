"""The command ``airflow-lance``: serve a Lance namespace, look at its tables, start jobs and follow them.

Each module defines the commands of one noun. Modules import the standard library only; what a command needs beyond
that is imported when the command runs, so that ``--help`` and completion answer at once.
"""
