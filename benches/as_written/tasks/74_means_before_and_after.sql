-- The mean reading of the hour before and of the hour after each alarm.
SELECT a.id, avg(p.v) FILTER (WHERE p.ts < a.ts) AS before, avg(p.v) FILTER (WHERE p.ts >= a.ts) AS after
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 hour' AND a.ts + INTERVAL '1 hour'
GROUP BY a.id
