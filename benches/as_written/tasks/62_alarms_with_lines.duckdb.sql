-- Alarms with a log line in the minute before them.
SELECT a.id
FROM alarms a
WHERE EXISTS (SELECT 1 FROM log l WHERE l.s = a.s AND l.at::timestamp BETWEEN a.ts - INTERVAL '1 minute' AND a.ts)
