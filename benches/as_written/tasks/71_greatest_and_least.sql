-- Sessions of a sensor that overlap.
SELECT a.id, b.id AS other
FROM sessions a
JOIN sessions b ON b.s = a.s AND a.id < b.id AND greatest(a.started, b.started) < least(a.ended, b.ended)
WHERE a.ended IS NOT NULL AND b.ended IS NOT NULL
