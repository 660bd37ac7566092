"""The one SQL front end: texts of Lance and Spark SQL, read with a parser and never printed from its tree."""
