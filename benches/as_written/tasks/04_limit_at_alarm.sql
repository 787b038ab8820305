-- The limit that was valid at each alarm; the last period is open.
SELECT a.id, l.top
FROM alarms a
JOIN limits l ON l.s = a.s AND a.ts >= l.valid_from AND (a.ts < l.valid_to OR l.valid_to IS NULL)
