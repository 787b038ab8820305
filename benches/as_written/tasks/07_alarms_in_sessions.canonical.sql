-- Alarms that went off while a session of their sensor was open.
SELECT a.id
FROM alarms a
WHERE EXISTS (SELECT 1 FROM sessions p WHERE p.s = a.s AND p.started <= a.ts
                AND coalesce(p.ended, arrow_cast('2200-01-01', 'Timestamp(µs)')) >= a.ts)
