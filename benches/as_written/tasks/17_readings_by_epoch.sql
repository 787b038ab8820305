-- How many readings each alarm has in the hour before it.
SELECT a.id, count(*) AS n
FROM alarms a
JOIN points p ON p.s = a.s AND extract(epoch FROM a.ts - p.ts) BETWEEN 0 AND 3600
GROUP BY a.id
