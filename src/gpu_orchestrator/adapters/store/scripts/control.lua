-- What an operator says of a worker: fields of its row (cordoned, draining, devices), or that it be forgotten.
-- Arguments: fence, name, fields {name, value, ...}, forget (1: remove the row if the worker is offline),
--   status as it is told to those who watch, empty: tell nobody
-- Answers {state or '' if unknown, api}
local fence, name, fields, forget, status = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local key = P .. 'w:' .. name
local row = redis.call('HMGET', key, 'state', 'api')
if row[1] then
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  if forget == 1 and row[1] == 'offline' then
    redis.call('DEL', key, P .. 'on:' .. name, P .. 'of:' .. name, P .. 'd:' .. name)
    redis.call('SREM', P .. 'workers', name)
  end
  tell_worker(name)
  if status ~= '' then emit_worker('worker_status_changed', name, status, 'an operator said so') end
end
return answer(fence, {row[1] or '', row[2] or ''})
