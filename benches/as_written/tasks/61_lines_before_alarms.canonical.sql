-- The log lines in the five minutes before each alarm, whose times are text.
SELECT a.id, l.line
FROM alarms a
JOIN (SELECT s, line, arrow_cast(at, 'Timestamp(µs)') AS moment FROM log) l ON l.s = a.s AND l.moment BETWEEN a.ts - INTERVAL '5 minutes' AND a.ts
