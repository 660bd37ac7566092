"""The commands of ``airflow-lance``, one file for each group of them."""
