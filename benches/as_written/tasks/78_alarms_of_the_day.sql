-- The alarms on the day of each session or the day before.
SELECT s.id, a.id AS alarm
FROM sessions s
JOIN alarms a ON a.s = s.s AND to_date(a.ts::text) BETWEEN s.started::date - 1 AND s.started::date
WHERE s.id % 5 = 0
