-- How many alarms of the day around each session were before and after its start.
SELECT s.id, sum(CASE WHEN a.ts < s.started THEN 1 ELSE 0 END) AS before, sum(CASE WHEN a.ts >= s.started THEN 1 ELSE 0 END) AS after
FROM sessions s
JOIN alarms a ON a.s = s.s AND a.ts BETWEEN s.started - INTERVAL '12 hours' AND s.started + INTERVAL '12 hours'
GROUP BY s.id
