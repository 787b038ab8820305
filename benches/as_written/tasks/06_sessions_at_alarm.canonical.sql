-- How many sessions of its sensor were open at each alarm.
SELECT a.id, count(p.id) AS n
FROM alarms a
LEFT JOIN sessions p ON p.s = a.s AND p.started <= a.ts AND coalesce(p.ended, arrow_cast('2200-01-01', 'Timestamp(µs)')) > a.ts
GROUP BY a.id
