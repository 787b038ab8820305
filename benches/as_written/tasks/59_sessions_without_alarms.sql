-- Closed sessions in which no alarm of level 3 went off.
SELECT s.id
FROM sessions s
LEFT JOIN alarms a ON a.s = s.s AND a.level = 3 AND a.ts BETWEEN s.started AND s.ended
WHERE s.ended IS NOT NULL AND a.id IS NULL
