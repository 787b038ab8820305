-- How many sessions of its sensor were open at each alarm.
SELECT a.id, count(p.id) AS n
FROM alarms a
LEFT JOIN sessions p ON p.s = a.s AND p.started <= a.ts AND (p.ended IS NULL OR p.ended > a.ts)
GROUP BY a.id
