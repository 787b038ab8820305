-- The mean reading of the hour of the clock in which each alarm went off.
SELECT a.id, avg(p.v) AS mean
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts >= date_trunc('hour', a.ts) AND p.ts < date_trunc('hour', a.ts) + INTERVAL '1 hour'
GROUP BY a.id
