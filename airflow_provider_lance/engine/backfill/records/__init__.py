"""What a backfill keeps on disk beside the table: checkpoints, fresh fragments, failed rows, and what is swept."""
