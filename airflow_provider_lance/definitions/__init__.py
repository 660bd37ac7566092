"""What a column's rule and a view's query are: read by the server and the engine. No Spark, no lance, no Airflow."""
