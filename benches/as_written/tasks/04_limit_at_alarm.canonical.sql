-- The limit that was valid at each alarm; the last period is open.
SELECT a.id, l.top
FROM alarms a
JOIN limits l ON l.s = a.s AND a.ts >= l.valid_from AND a.ts < coalesce(l.valid_to, arrow_cast('2200-01-01', 'Timestamp(µs)'))
