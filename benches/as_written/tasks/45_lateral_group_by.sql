-- For each session its number of alarms by level.
SELECT s.id, t.level, t.n
FROM sessions s
CROSS JOIN LATERAL (
  SELECT a.level, count(*) AS n FROM alarms a
  WHERE a.s = s.s AND a.ts BETWEEN s.started AND s.ended
  GROUP BY a.level
) t
