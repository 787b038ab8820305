-- How many alarms of the day around each session were before and after its start.
SELECT id, before, after
FROM (
  SELECT o.id,
    (SELECT count(*) FROM alarms a WHERE a.s = o.s AND a.ts >= o.started - INTERVAL '12 hours' AND a.ts < o.started) AS before,
    (SELECT count(*) FROM alarms a WHERE a.s = o.s AND a.ts >= o.started AND a.ts <= o.started + INTERVAL '12 hours') AS after
  FROM sessions o
) x
WHERE before + after > 0
