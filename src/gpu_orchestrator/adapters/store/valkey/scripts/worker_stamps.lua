-- Read what tells whether a worker's row, or what it holds, has changed. Callers ask for a few hundred at a time.
-- Arguments: worker names
-- Answers per worker {stamp of its row, stamp of what it holds, tasks done, tasks failed, when it was seen, attempts that
--   it holds}; stamps are '' if unknown
-- `changes` counts every change. The other fields are for changes by a server of a version that does not count them.
local FIELDS = {'changes', 'epoch', 'state', 'connection', 'api', 'reported', 'cordoned', 'draining', 'leaving',
  'cordoned_devices'}
local found = {}
for number, name in ipairs(ARG[1]) do
  local row, of = redis.call('HMGET', P .. 'w:' .. name, 'seen', unpack(FIELDS)), P .. 'of:' .. name
  local seen = table.remove(row, 1) or ''
  local went = redis.call('HMGET', P .. 'd:' .. name, 'done', 'failed')
  for at = 1, #FIELDS do row[at] = row[at] or '' end
  -- An attempt that begins gets the highest score in `of`; one that ends leaves `on`.
  local newest = redis.call('ZREVRANGE', of, 0, 0, 'WITHSCORES')
  local active = redis.call('SCARD', P .. 'on:' .. name)
  local held = table.concat({active, redis.call('ZCARD', of), newest[1] or '', newest[2] or ''}, ' ')
  found[number] = {row[2] ~= '' and table.concat(row, ' ') or '', row[2] ~= '' and held or '', tonumber(went[1] or 0),
    tonumber(went[2] or 0), seen, active}
end
return cmsgpack.pack({{}, found})
