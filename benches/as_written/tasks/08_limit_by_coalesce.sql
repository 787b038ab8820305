-- The limit that was valid at each alarm, where an open end is far in the future.
SELECT a.id, l.top
FROM alarms a
JOIN limits l ON l.s = a.s AND a.ts >= l.valid_from AND a.ts < coalesce(l.valid_to, TIMESTAMP '2100-01-01 00:00:00')
