-- Cells of an attempt that the platform failed, kept until starts_at for the gang, or, where that is
-- over, for the one that follows it. A list: virtual cluster, priority, user, job and pins of the
-- attempt. NULL: an ordinary reservation.
ALTER TABLE reservation ADD COLUMN kept_of jsonb;
