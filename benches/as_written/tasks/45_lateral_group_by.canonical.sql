-- For each session its number of alarms by level.
SELECT o.id, a.level, count(*) AS n
FROM sessions o
JOIN alarms a ON a.s = o.s AND a.ts BETWEEN o.started AND o.ended
GROUP BY o.id, a.level
