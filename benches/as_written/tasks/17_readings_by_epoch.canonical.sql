-- How many readings each alarm has in the hour before it.
SELECT a.id, count(*) AS n
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 hour' AND a.ts
GROUP BY a.id
