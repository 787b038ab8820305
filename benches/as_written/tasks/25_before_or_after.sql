-- The mean reading between one and two hours before or after each alarm.
SELECT a.id, avg(p.v) AS mean
FROM alarms a
JOIN points p ON p.s = a.s
  AND (p.ts BETWEEN a.ts - INTERVAL '2 hours' AND a.ts - INTERVAL '1 hour'
    OR p.ts BETWEEN a.ts + INTERVAL '1 hour' AND a.ts + INTERVAL '2 hours')
GROUP BY a.id
