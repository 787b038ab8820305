-- For each session its number of alarms by level.
SELECT o.id, t.level, t.n
FROM sessions o
CROSS JOIN LATERAL (
  SELECT a.level, count(*) AS n FROM alarms a
  WHERE a.s = o.s AND a.ts BETWEEN o.started AND o.ended
  GROUP BY a.level
) t
