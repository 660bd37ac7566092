"""Run Lance from Airflow."""
