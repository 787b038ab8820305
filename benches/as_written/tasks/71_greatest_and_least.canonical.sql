-- Sessions of a sensor that overlap.
SELECT a.id, b.id AS other
FROM sessions a
JOIN sessions b ON b.s = a.s AND a.id < b.id AND a.started < b.ended AND b.started < a.ended AND a.started < a.ended AND b.started < b.ended
