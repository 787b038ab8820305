-- Readings with an alarm in the minute before or a session that began in the minute after.
SELECT p.id
FROM points p
WHERE EXISTS (SELECT 1 FROM alarms a WHERE a.s = p.s AND a.ts BETWEEN p.ts - INTERVAL '1 minute' AND p.ts)
   OR EXISTS (SELECT 1 FROM sessions s WHERE s.s = p.s AND s.started BETWEEN p.ts AND p.ts + INTERVAL '1 minute')
