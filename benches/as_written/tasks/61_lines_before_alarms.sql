-- The log lines in the five minutes before each alarm, whose times are text.
SELECT a.id, l.line
FROM alarms a
JOIN log l ON l.s = a.s AND l.at::timestamp BETWEEN a.ts - INTERVAL '5 minutes' AND a.ts
