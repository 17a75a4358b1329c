-- Since when (seconds since 1970) a gang that runs is downgraded, and for which gang; NULL for whom:
-- its quota went by a change of the configuration. Only told: no decision is made of it.
ALTER TABLE gang
    ADD COLUMN downgraded_at  double precision,
    ADD COLUMN downgraded_for text;
