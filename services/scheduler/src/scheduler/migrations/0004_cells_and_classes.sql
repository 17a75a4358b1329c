-- What the core keeps of a gang that has places: how it holds them (class, and the physical cells
-- with the quota that each is out of), since when it runs, until when and for whom it was told to
-- leave. reserved: places that are kept for pods of it until others have left. Times are seconds
-- since 1970. preemption: as it was told (muster.contracts.gangs.Preemption).
ALTER TABLE gang
    ADD COLUMN class           text,
    ADD COLUMN cells           jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN started_at      double precision,
    ADD COLUMN preempted_until double precision,
    ADD COLUMN preempted_for   text,
    ADD COLUMN preemption      jsonb,
    ADD COLUMN reserved        jsonb NOT NULL DEFAULT '[]';
UPDATE gang SET started_at = extract(epoch FROM placed_at)::double precision FROM
    (SELECT gang AS name, min(placed_at) AS placed_at FROM placement GROUP BY gang) AS first
    WHERE gang.gang = first.name;

-- charged: GPUs that the pod does not use and is charged all the same, for its share of the node.
-- wants: what else it wants: gpuTypes, pin, resources.
ALTER TABLE placement
    ADD COLUMN charged integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN wants   jsonb     NOT NULL DEFAULT '{}';

-- size: what the node has, well or not, as it last reported. A restart makes the same cluster of it.
ALTER TABLE node ADD COLUMN size jsonb;
